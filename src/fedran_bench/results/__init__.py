"""Result lines and what is read off them."""
