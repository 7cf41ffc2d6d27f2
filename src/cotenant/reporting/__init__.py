"""HTML report pages and SVG charts."""
