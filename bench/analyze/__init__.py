"""The whole report, in process and on a Dask cluster."""
