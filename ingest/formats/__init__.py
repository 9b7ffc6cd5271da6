"""One module for each family of file formats: the file's bytes → a document, or the files that are in it."""
