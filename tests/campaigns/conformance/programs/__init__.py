"""The sweep of programs: what users do with torch.compile, 2-10 lines each, a module per subject."""
