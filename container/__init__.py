"""The process level: what the image and the command line run. Imports every other package, imported by none."""
