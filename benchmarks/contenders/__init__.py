"""What is timed: inputs, nodes and whole models of this project and of those it stands beside."""
