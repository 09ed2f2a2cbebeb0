"""Tables on disk: makers, models, and the judges that read them."""
