"""Several methods, several seeds, one table: what `dapperfl compare` does, as functions.

`variants` reads what is to be compared, `planned` lists the runs, `collect` has them done and keeps
one CSV row for each; `series`, `paired` and `tables` turn rows into tables, `formats` writes these.
Everything after the rows needs the CSV file alone, so that tables can be made again anywhere.
"""
