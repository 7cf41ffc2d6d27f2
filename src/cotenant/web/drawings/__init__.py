"""SVG that the server draws: the same with and without JavaScript, and without inline styles."""
