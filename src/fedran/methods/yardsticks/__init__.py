"""What plain sending of rows or images would cost."""
