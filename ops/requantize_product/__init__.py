"""A product in integers, and what follows it, rounded to 8 bits again for the next product."""
