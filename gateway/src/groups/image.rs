//! The durable state of one partition of `__groups` as a snapshot has it.

use super::consumer::image::Consumers;
use super::pending::Pending;
use super::record::Stored;
use super::view::Numbers;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Fields are appended only: an image of an older version ends before them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Image {
    /// By name. Version 1 had these alone.
    pub(crate) groups: BTreeMap<String, Stored>,
    /// Groups of the consumer protocol, and configs of groups. Since version 2.
    pub(crate) consumers: Consumers,
    /// Offsets that wait for the end of a transaction. Since version 3.
    pub(crate) pending: Pending,
    /// Where tools find all this. Since version 4; what was stored without is numbered by name.
    pub(crate) numbers: Numbers,
}

impl<'de> Deserialize<'de> for Image {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Image, D::Error> {
        struct ImageVisitor;
        impl<'de> Visitor<'de> for ImageVisitor {
            type Value = Image;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the state of groups")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<Image, A::Error> {
                let groups: BTreeMap<String, Stored> = fields.next_element()?.unwrap_or_default();
                // Older versions end here or there; their bytes were checked as a whole.
                let consumers = fields.next_element().ok().flatten().unwrap_or_default();
                let pending = fields.next_element().ok().flatten().unwrap_or_default();
                let numbers = fields.next_element().ok().flatten();
                let numbers = numbers.unwrap_or_else(|| Numbers::of(&groups));
                Ok(Image { groups, consumers, pending, numbers })
            }
        }
        deserializer.deserialize_struct("Image", &["groups", "consumers", "pending", "numbers"], ImageVisitor)
    }
}
