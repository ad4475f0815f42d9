//! What a command answers when it fails: a code, a message, a hint and the exit code of the process.

use crate::http::shapes::ErrorBody;
use std::process::ExitCode;

/// Why the process ends with something else than 0.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 1: the command was understood and failed.
    Failed,
    /// 2: the command line or the configuration is wrong.
    Usage,
    /// 3: a data directory or a port cannot be used.
    Unusable,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Unusable => 3,
        })
    }
}

/// A failed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How the process ends.
    pub exit: Exit,
    /// What happened.
    pub body: ErrorBody,
}

impl Failure {
    /// A command that was understood and failed.
    pub fn failed(code: &str, message: impl Into<String>) -> Failure {
        Failure { exit: Exit::Failed, body: ErrorBody::new(code, message) }
    }

    /// A wrong command line or configuration.
    pub fn usage(code: &str, message: impl Into<String>) -> Failure {
        Failure { exit: Exit::Usage, body: ErrorBody::new(code, message) }
    }

    /// A data directory or a port that cannot be used.
    pub fn unusable(code: &str, message: impl Into<String>) -> Failure {
        Failure { exit: Exit::Unusable, body: ErrorBody::new(code, message) }
    }

    /// With a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.body = self.body.hint(hint);
        self
    }

    /// Writes it to stderr: for a person, or as JSON.
    pub fn report(&self, format: Format) {
        match format {
            Format::Json => {
                // Serializing strings cannot fail; the message is shown anyway if it did.
                let text = serde_json::to_string(&self.body).unwrap_or_else(|e| e.to_string());
                eprintln!("{text}");
            }
            Format::Text => {
                eprintln!("error: {}", self.body.error.message);
                if let Some(hint) = &self.body.error.hint {
                    eprintln!("hint: {hint}");
                }
            }
        }
    }
}

/// For whom a command writes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// A person.
    Text,
    /// A program.
    Json,
}

impl Format {
    /// From a `--json` flag.
    pub fn json(json: bool) -> Format {
        if json { Format::Json } else { Format::Text }
    }
}
