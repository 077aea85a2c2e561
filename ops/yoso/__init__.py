"""YOSO: attention by LSH Bernoulli sampling, linear in length."""
