"""`fxpool dashboard`: a local web page about this host's servers and the store. Only `generated_code` imports torch.

    browser ──GET──▶ web ──▶ application ──▶ pool_view   (a visitor's connection to each server: status, history)
       ▲                        │   └──────▶ store_view  (the files of the store)
       └──── event stream ◀─────┘
                                └──▶ code_child, a separate process for each request for generated code

The dashboard is a separate process, which keeps the pool's server small and safe: the server knows neither HTTP nor the
store, and the page keeps working when the server hangs, ends or is replaced. The dashboard only reads; no request
changes anything. Only this user can open the page: it listens on loopback, its URL contains a secret, and pages of
other sites are refused (see `web`).

application     routes, polling of pool and store, the stream of changes, and a list of failures
generated_code  prints the generated code of an entry; imports torch
entry_view      an entry in detail, and its differences from an earlier entry
metrics         Prometheus metrics (the extra `metrics`)
pool_view       this host's servers and their jobs, and why jobs wait
store_view      the store's entries, their sizes, and the misses behind them
web             an HTTP server for a few readers, and access control
"""
