"""Studies that vary one setting: each module holds the table, figure, text and verdict of one."""
