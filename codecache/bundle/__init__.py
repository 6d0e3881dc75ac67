"""Bundles: entries and their blobs in one file, to be moved between directories.

bundle            exports and imports entries
bundle_file       the file format
authentication    MACs of bundles and of remote values
"""
