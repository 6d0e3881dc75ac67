"""`fxpool dashboard`: one local page on this host's servers and the store. No torch in here but in `code_child`.

    browser ──GET──▶ web ──▶ application ──▶ pool_view   (a visitor's connection to each server: status, history)
       ▲                        │   └──────▶ store_view  (the files of the store, and what they tell)
       └──── event stream ◀─────┘
                                └──▶ code_child, a process of its own for each look at generated code

A process of its own beside the pool's server, which stays small and safe for it: the server knows neither HTTP nor the
store, and it may hang, end or be replaced while the page goes on. Everything here only reads: there is no request that
changes anything. The page is for this user alone: loopback, a secret in the address, and no other site's page may ask
(see `access`).

access             who may ask: the secret, the Host header, headers of answers
application        what is asked for by which path; the looks at pool and store, and the stream of what changed
code_child         prints the generated code of an entry; imports torch
entry_view         an entry in detail, and what differs from the one before
failures           what is known to have gone wrong, from jobs, quarantine and store
metrics            what Prometheus scrapes (the extra `metrics`)
pool_view          this host's servers and their jobs
requests           a request's first lines, parsed
samples            numbers over time, in bounded memory
store_view         the store's entries, sizes and why they were made
waits              what a job waits for, in a sentence
web                an HTTP server for a few readers
"""
