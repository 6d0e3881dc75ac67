"""(later)"""
