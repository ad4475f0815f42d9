//! Programs for the Java machine: whether their client's libraries are installed, compiling, starting.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::broker::installed;
use crate::skip;
use crate::suite::{folder, on_path};

/// Whether the Java machine and the libraries of `clients/CLIENT/pom.xml` are there; says `SKIPPED` where they are not.
pub fn is_installed(client: &str) -> bool {
    let there = on_path("javac") && installed().join(client).join("libs").is_dir();
    if !there {
        let missing = format!("no Java 17 with javac, or no libraries of {client}");
        let install = format!("apt-get install openjdk-17-jdk maven && compat-tests/install {client}");
        skip::announce(client, &missing, &install);
    }
    there
}

/// Compiles `clients/CLIENT/NAME.java` and what it names of `clients/CLIENT` and `clients/jvm`; answers the class path to run it with.
pub fn compile(client: &str, name: &str) -> Result<String> {
    let home = installed().join(client);
    let classes = home.join("classes");
    let class_path = format!("{}:{}/*", classes.display(), home.join("libs").display());
    let sources = format!("{}:{}", folder(client).display(), folder("jvm").display());
    let done = Command::new("javac")
        .args(["-implicit:class", "-proc:none", "-sourcepath", &sources])
        .args(["-d".as_ref(), classes.as_os_str(), "-cp".as_ref(), class_path.as_ref()])
        .arg(folder(client).join(name).with_extension("java"))
        .stdin(Stdio::null())
        .output()
        .context("running javac")?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(class_path)
}

/// The command that runs a compiled program, with a heap of so many MiB.
pub fn program(class_path: &str, name: &str, heap_mb: u32) -> Command {
    let mut program = Command::new("java");
    program.arg(format!("-Xmx{heap_mb}m")).args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
    program.arg(format!("-Dlog4j2.configurationFile={}", folder("jvm").join("log4j2.xml").display()));
    program.args(["-cp", class_path, name]);
    program
}
