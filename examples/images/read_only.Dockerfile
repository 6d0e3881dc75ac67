# An image for a read-only root: docker run --read-only --tmpfs /tmp IMAGE
FROM registry.example/torch:1
RUN pip install --no-cache-dir fxpool
WORKDIR /app
COPY warm_up.py serve.py ./
RUN FXPOOL_CACHE_DIR=/opt/fxpool fxpool warm warm_up.py && chmod -R go+rX /opt/fxpool
ENV FXPOOL_CACHE_BASE=/opt/fxpool
# Sockets and graphs that the base lacks; both end with the container.
ENV FXPOOL_RUNTIME_DIR=/tmp/fxpool FXPOOL_CACHE_DIR=/tmp/fxpool-cache
USER 1000
CMD ["python", "serve.py"]
