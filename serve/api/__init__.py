"""Requests and answers: our own routes, a file for each protocol of another server, errors, OpenAPI."""
