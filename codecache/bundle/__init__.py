"""Bundles: entries and their blobs in one file, to be moved between directories.

bundle             exports and imports entries
bundle_file        the file format
capture_directory  recorded requests, for another machine to compile
authentication     MACs of bundles, recorded requests and remote values
"""
