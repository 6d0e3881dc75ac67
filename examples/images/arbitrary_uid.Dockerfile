# An image that runs as any user, without an entry in /etc/passwd or a home, as OpenShift starts it.
FROM registry.example/torch:1
RUN pip install --no-cache-dir fxpool
WORKDIR /app
COPY warm_up.py serve.py ./
RUN FXPOOL_CACHE_DIR=/opt/fxpool fxpool warm warm_up.py && chmod -R go+rX /opt/fxpool
ENV FXPOOL_CACHE_BASE=/opt/fxpool
# Graphs that the base lacks: fxpool makes this directory for the user that the container has.
ENV FXPOOL_CACHE_DIR=/tmp/fxpool-cache
USER 54321
CMD ["python", "serve.py"]
