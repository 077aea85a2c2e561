"""How it is timed: cases, clocks, programs, and the record of machine and commit."""
