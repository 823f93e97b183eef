"""Where tasks live: the seam (`protocol`), how a URL becomes a store (`open`), and one folder per store."""
