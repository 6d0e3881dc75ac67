# An image with the graphs of its program in a layer: a container compiles nothing at its first start.
FROM registry.example/torch:1
RUN pip install --no-cache-dir fxpool
WORKDIR /app
COPY warm_up.py serve.py ./
# Root fills the base; every user may read it, and none but root may write to it.
RUN FXPOOL_CACHE_DIR=/opt/fxpool fxpool warm warm_up.py && chmod -R go+rX /opt/fxpool
ENV FXPOOL_CACHE_BASE=/opt/fxpool
CMD ["python", "serve.py"]
