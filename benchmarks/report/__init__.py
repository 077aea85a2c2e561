"""From result files to tables, plots and the generated blocks of the documentation."""
