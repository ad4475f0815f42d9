//! What is logged on this thread, for tests of how much that is.

use parking_lot::Mutex;
use std::fmt::{self, Write};
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Lines with their level, in order, from the level INFO on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

impl Lines {
    /// Those so far, which are forgotten.
    pub(crate) fn take(&self) -> Vec<(Level, String)> {
        std::mem::take(&mut self.0.lock())
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).expect("a string takes everything");
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().push((*event.metadata().level(), text.0));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
