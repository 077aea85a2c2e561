"""Rows rounded to 8 bits, one scale a row: what a product in integers takes."""
