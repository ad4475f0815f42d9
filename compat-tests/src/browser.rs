//! A real browser without a window, driven through chromedriver: headless Chromium of the machine.
//!
//! Speaks just what the page test needs of WebDriver (<https://www.w3.org/TR/webdriver2/>) over plain HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ports;
use crate::suite::on_path;

/// How long the browser may take for one command; it is slow to start on a busy machine.
const COMMAND_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Programs that it needs, with what installs them.
pub const INSTALL: &str = "apt-get install -y chromium chromium-driver";

/// A running browser with one page; ended when dropped.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: TempDir,
}

/// Whether `chromium` and `chromedriver` are on the path.
pub fn is_installed() -> bool {
    on_path("chromium") && on_path("chromedriver")
}

impl Browser {
    /// Starts one.
    pub fn start() -> Result<Self> {
        let port = ports::free()?;
        let profile = tempfile::Builder::new().prefix("rangeway-browser-").tempdir()?;
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting chromedriver")?;
        let mut browser = Self { driver, port, session: String::new(), _profile: profile };
        let began = Instant::now();
        while browser.ask("GET", "/status", &Value::Null).is_err() {
            ensure!(began.elapsed() < COMMAND_MAX, "chromedriver does not answer");
            thread::sleep(POLL);
        }
        let folder = format!("--user-data-dir={}", browser._profile.path().display());
        // Tests may run as root and in containers with little shared memory: no sandbox then, and nothing foreign is loaded.
        let arguments =
            ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &*folder];
        let options = json!({ "args": arguments });
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let made = browser.ask("POST", "/session", &json!({ "capabilities": { "alwaysMatch": wanted } }))?;
        browser.session = made["sessionId"].as_str().context("a session without an id")?.to_owned();
        Ok(browser)
    }

    /// Width and height in CSS pixels, as on such a screen, and the reader's choice of colours.
    pub fn look_like(&self, width: u32, height: u32, scheme: &str) -> Result<()> {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700 });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)?;
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", features)
    }

    /// Loads a page.
    pub fn open(&self, url: &str) -> Result<()> {
        self.command("POST", "/url", &json!({ "url": url })).map(drop)
    }

    /// What a script returns.
    pub fn run(&self, script: &str) -> Result<Value> {
        self.command("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Messages of the console since the last call: errors of scripts, and of what the page's policy forbade.
    pub fn console(&self) -> Result<Vec<String>> {
        let entries = self.command("POST", "/se/log", &json!({ "type": "browser" }))?;
        let entries = entries.as_array().cloned().unwrap_or_default();
        Ok(entries.iter().map(|entry| format!("{} {}", entry["level"], entry["message"])).collect())
    }

    /// A picture of what is seen, as PNG, where `RANGEWAY_COMPAT_SCREENSHOTS` names a folder for them.
    pub fn picture(&self, name: &str) -> Result<()> {
        let Some(folder) = env::var_os("RANGEWAY_COMPAT_SCREENSHOTS") else { return Ok(()) };
        let taken = self.command("GET", "/screenshot", &Value::Null)?;
        let bytes =
            base64::engine::general_purpose::STANDARD.decode(taken.as_str().context("no picture")?)?;
        fs::create_dir_all(&folder)?;
        Ok(fs::write(Path::new(&folder).join(format!("{name}.png")), bytes)?)
    }

    fn devtools(&self, name: &str, params: Value) -> Result<()> {
        self.command("POST", "/goog/cdp/execute", &json!({ "cmd": name, "params": params })).map(drop)
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        self.ask(method, &format!("/session/{}{path}", self.session), body)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut stream = TcpStream::connect_timeout(&at, COMMAND_MAX)?;
        stream.set_read_timeout(Some(COMMAND_MAX))?;
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n", text.len());
        stream.write_all(format!("{head}{text}").as_bytes())?;
        let mut answer = BufReader::new(stream);
        let (mut length, mut line) = (0usize, String::new());
        loop {
            line.clear();
            ensure!(answer.read_line(&mut line)? > 0, "chromedriver closed the connection");
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
        }
        let mut bytes = vec![0; length];
        answer.read_exact(&mut bytes)?;
        let answer: Value = serde_json::from_slice(&bytes)?;
        let value = answer["value"].clone();
        if let Some(error) = value.get("error").filter(|error| error.is_string()) {
            bail!("{method} {path}: {error}: {}", value["message"]);
        }
        Ok(value)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser; without a session there is none. Nobody is left to hear about what does not end.
        let _ = self.ask("DELETE", &format!("/session/{}", self.session), &Value::Null);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
