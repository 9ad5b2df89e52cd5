"""The process level: what the image and the command line run. Imports all other packages; none of them imports it."""
