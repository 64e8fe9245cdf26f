"""The HTML page that shows a record."""
