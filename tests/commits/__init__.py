"""Groups' positions while who notes them is killed."""
