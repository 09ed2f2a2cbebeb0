"""What commands find and do, as values that print as JSON."""
