# The same image around a program that is built already; docker/build makes the build context: usr/local/bin/rangeway, and data/.
ARG BASE_IMAGE=scratch

FROM ${BASE_IMAGE}
COPY --chown=10001:10001 data /data
COPY usr /usr
USER 10001:10001
ENV PATH=/usr/local/bin:/usr/bin:/bin RANGEWAY_DATA=/data RANGEWAY_KAFKA__BIND=0.0.0.0:9092
VOLUME /data
EXPOSE 9092 9180
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["rangeway", "cluster", "status"]
ENTRYPOINT ["rangeway"]
CMD ["serve"]
