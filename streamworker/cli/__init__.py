"""The command line, one module per noun.

Modules import little at the top, so that each command pays only for what it uses.
"""
