//! Says which suite did not run, why, and what would make it run.

use std::io::Write;

/// Writes `SKIPPED suite: missing; install: command` as a line of its own.
///
/// Goes past the test runner's capture (which takes only the print macros), so that a skipped suite is seen although
/// its test counts as passed.
pub fn announce(suite: &str, missing: &str, install: &str) {
    let line = format!("SKIPPED {suite}: {missing}; install: {install}\n");
    let mut out = std::io::stderr().lock();
    // A closed stderr leaves nobody to tell.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}
