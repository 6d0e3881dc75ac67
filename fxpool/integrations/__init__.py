"""Reports to other libraries what fxpool compiled. None of them is imported before its module is used.

training        numbers to log about the time since a training began
transformers    a callback for the Trainer of transformers
lightning       a callback for the Trainer of Lightning
opentelemetry   a span for each graph
"""
