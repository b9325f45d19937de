#!/usr/bin/env bash
# What Spark wants of an image on Kubernetes: it gives `driver ARGUMENTS` or `executor`, and the rest
# in the environment (Spark's resource-managers/kubernetes, BasicExecutorFeatureStep). Anything else is
# a command, as in an image without this file.
set -euo pipefail

case ${1:-} in
  driver)
    shift
    set -- "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  executor)
    # Java's options are SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on; each may have spaces.
    options=()
    while name=SPARK_JAVA_OPT_${#options[@]} && [ -n "${!name+set}" ]; do
      options+=("${!name}")
    done
    classes=$SPARK_HOME/jars/*
    for more in "${SPARK_CLASSPATH:-}" "${HADOOP_CONF_DIR:-}" "${SPARK_CONF_DIR:-}"; do
      classes=${more:+$more:}$classes
    done
    set -- java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "$classes" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
esac
# The first process of a container must collect what its children leave: tini does.
exec tini -s -- "$@"
