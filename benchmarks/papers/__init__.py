"""The tables of the papers, made again with this project's operators."""
