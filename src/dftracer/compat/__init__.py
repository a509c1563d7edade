"""Names that programs know from DFTracer's Python bindings and that nothing else here needs.

Imported when one of them is used, never by `import dftracer.python`.
"""
