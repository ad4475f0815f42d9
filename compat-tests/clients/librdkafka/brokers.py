"""Brokers that a run starts for itself, each with its data in a folder: rangeway as a process or a container, and the reference."""

import os
import shutil
import socket
import subprocess
import time

START_LIMIT_S = 120
STOP_LIMIT_S = 30


def free_ports(count):
    """Ports that nobody listens on just now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def wait_for(text, path, processes):
    """Until `text` is in the file; fails when a process ends before."""
    until = time.monotonic() + START_LIMIT_S
    while True:
        said = open(path, errors="replace").read() if os.path.exists(path) else ""
        if text in said:
            return
        if any(p.poll() is not None for p in processes) or time.monotonic() > until:
            raise RuntimeError(f"a broker did not start, see {path}:\n" + "\n".join(said.splitlines()[-20:]))
        time.sleep(0.2)


def end(processes):
    for process in processes:
        process.terminate()
    until = time.monotonic() + STOP_LIMIT_S
    for process in processes:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def settings(scenario):
    """What the suite expects: four partitions for topics on demand (0122), and access rules that hold (0081, 0109, 0115, 0119)."""
    return {
        "num.partitions": "4",
        "auto.create.topics.enable": str(scenario != "noautocreate").lower(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }


class Rangeway:
    """This workspace's program as a process."""

    name = "rangeway"

    def __init__(self, program, folder, scenario):
        self.kafka_port, self.http_port = free_ports(2)
        self.bootstrap, self.http = f"127.0.0.1:{self.kafka_port}", f"127.0.0.1:{self.http_port}"
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        command = [program, "serve", "--data", os.path.join(folder, "data"), "--kafka", self.bootstrap, "--http", self.http]
        for key, value in settings(scenario).items():
            command += ["--set", f"{key}={value}"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RANGEWAY_")}
        out = os.path.join(folder, "stdout.log")
        with open(out, "wb") as o, open(os.path.join(folder, "stderr.log"), "wb") as e:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=o, stderr=e)
        try:
            wait_for("rangeway ready ", out, [self.process])
        except BaseException:
            self.stop()
            raise

    def stop(self):
        end([self.process])
        shutil.rmtree(os.path.join(self.folder, "data"), ignore_errors=True)


class Container:
    """The image in a container, reached through published ports of the loopback."""

    name = "rangeway"

    def __init__(self, image, folder, scenario):
        self.kafka_port, self.http_port = free_ports(2)
        self.bootstrap, self.http = f"127.0.0.1:{self.kafka_port}", f"127.0.0.1:{self.http_port}"
        self.log = os.path.join(folder, "container.log")
        os.makedirs(folder, exist_ok=True)
        command = ["docker", "run", "--detach", "-p", f"{self.bootstrap}:9092", "-p", f"{self.http}:9180", image, "serve"]
        command += ["--advertise", self.bootstrap, "--http", "0.0.0.0:9180", "--http-insecure"]
        for key, value in settings(scenario).items():
            command += ["--set", f"{key}={value}"]
        self.id = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise

    def logs(self):
        return subprocess.run(["docker", "logs", self.id], capture_output=True, text=True)

    def wait(self):
        until = time.monotonic() + START_LIMIT_S
        while "rangeway ready " not in self.logs().stdout:
            if time.monotonic() > until:
                raise RuntimeError("the container was not ready:\n" + self.logs().stderr[-4000:])
            time.sleep(0.5)

    def stop(self):
        subprocess.run(["docker", "stop", "--time", str(STOP_LIMIT_S), self.id], capture_output=True)
        logs = self.logs()
        with open(self.log, "w") as f:
            f.write(logs.stdout + logs.stderr)
        subprocess.run(["docker", "rm", "--force", "--volumes", self.id], capture_output=True)


REFERENCE = """\
process.roles={roles}
node.id={id}
broker.rack=RACK{id}
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
controller.quorum.voters=1@localhost:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},INTERNAL://127.0.0.1:{internal}{also}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},INTERNAL://127.0.0.1:{internal}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT
inter.broker.listener.name=INTERNAL
controller.listener.names=CONTROLLER
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.controller.sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
listener.name.internal.plain.sasl.jaas.config={plain}
listener.name.controller.plain.sasl.jaas.config={plain}
listener.name.internal.scram-sha-256.sasl.jaas.config={scram}
listener.name.internal.scram-sha-512.sasl.jaas.config={scram}
super.users=User:broker
log.dirs={data}
default.replication.factor=3
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
group.share.min.record.lock.duration.ms=1000
"""
PLAIN = ('org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="broker" user_broker="broker";')
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
LOG4J = """\
Configuration:
  Appenders:
    Console: {name: OUT, PatternLayout: {pattern: "[%d] %p %m (%c)%n"}}
  Loggers:
    Root: {level: INFO, AppenderRef: [{ref: OUT}]}
"""


class Reference:
    """Three brokers of Apache Kafka in racks of their own: what the suite's replication factors ask for. Clients come in unauthenticated;
    among themselves the brokers are a super user, so that an ACL which a test sets cannot stop them."""

    name = "reference"

    def __init__(self, libs, folder, scenario):
        self.processes, self.folder = [], folder
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        self.log4j = os.path.join(folder, "log4j2.yaml")
        with open(self.log4j, "w") as f:
            f.write(LOG4J)
        ports = free_ports(7)
        controller, addresses = ports[6], [f"127.0.0.1:{port}" for port in ports[:3]]
        self.bootstrap = ",".join(addresses)
        try:
            for node in (1, 2, 3):
                self.start(node, libs, ports[node - 1], ports[node + 2], controller, scenario)
            for node in (1, 2, 3):
                wait_for("Kafka Server started", os.path.join(folder, f"broker-{node}.log"), self.processes)
        except BaseException:
            self.stop()
            raise

    def start(self, node, libs, port, internal, controller, scenario):
        data = os.path.join(self.folder, f"data-{node}")
        also, roles = (f",CONTROLLER://localhost:{controller}", "broker,controller") if node == 1 else ("", "broker")
        properties = os.path.join(self.folder, f"server-{node}.properties")
        with open(properties, "w") as f:
            f.write(REFERENCE.format(id=node, roles=roles, port=port, internal=internal, controller=controller, also=also, data=data, plain=PLAIN, scram=SCRAM))
            f.writelines(f"{key}={value}\n" for key, value in settings(scenario).items())
        java = ["java", f"-Dlog4j2.configurationFile={self.log4j}", "-cp", f"{libs}/*"]
        storage = ["-Xmx256m", *java[1:], "kafka.tools.StorageTool", "format", "-t", "cmFuZ2V3YXlyZWZlcmVuYw", "-c", properties]
        subprocess.run([java[0], *storage], check=True, capture_output=True)
        with open(os.path.join(self.folder, f"broker-{node}.log"), "wb") as log:
            run = [java[0], "-Xmx768m", *java[1:], "kafka.Kafka", properties]
            self.processes.append(subprocess.Popen(run, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def stop(self):
        # The controller ends last, or the others wait for it.
        end(self.processes[1:])
        end(self.processes[:1])
        for node in (1, 2, 3):
            shutil.rmtree(os.path.join(self.folder, f"data-{node}"), ignore_errors=True)
