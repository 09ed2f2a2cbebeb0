"""Places of named objects: a folder, or a bucket. What an archive is made of."""
