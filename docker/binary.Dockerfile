# The same image around a program that is built already; the build context is its directory.
#
#   cargo build --release -p rangeway-gateway
#   docker build -f docker/binary.Dockerfile -t rangeway target/release
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BASE_IMAGE}
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin rangeway \
    && mkdir /data && chown rangeway /data
COPY rangeway /usr/local/bin/rangeway
USER rangeway
ENV RANGEWAY_DATA=/data RANGEWAY_KAFKA__BIND=0.0.0.0:9092
VOLUME /data
EXPOSE 9092 9180
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["rangeway", "cluster", "status"]
ENTRYPOINT ["rangeway"]
CMD ["serve"]
