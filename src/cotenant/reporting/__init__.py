"""HTML reports in one file: a page builder and SVG charts. Standard library only."""
