"""`fxpool dashboard`: a local web page about this host's servers and the store. Only `code_child` imports torch.

    browser ──GET──▶ web ──▶ application ──▶ pool_view   (a visitor's connection to each server: status, history)
       ▲                        │   └──────▶ store_view  (the files of the store)
       └──── event stream ◀─────┘
                                └──▶ code_child, a separate process for each request for generated code

The dashboard is a separate process, which keeps the pool's server small and safe: the server knows neither HTTP nor the
store, and the page keeps working when the server hangs, ends or is replaced. The dashboard only reads; no request
changes anything. Only this user can open the page: it listens on loopback, its URL contains a secret, and pages of
other sites are refused (see `access`).

access             access control: the secret, the Host header, headers of answers
application        routes, polling of pool and store, and the stream of changes
code_child         prints the generated code of an entry; imports torch
entry_view         an entry in detail, and its differences from an earlier entry
failures           failures of jobs, graphs in quarantine, damaged entries
metrics            Prometheus metrics (the extra `metrics`)
pool_view          this host's servers and their jobs
requests           parses the request line and headers
samples            numbers over time, in bounded memory
store_view         the store's entries, their sizes, and the misses behind them
waits              explains in a phrase why a job waits
web                an HTTP server for a few readers
"""
