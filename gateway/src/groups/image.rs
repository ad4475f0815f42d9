//! The durable state of one partition of `__groups` as a snapshot has it.

use super::consumer::image::Consumers;
use super::record::Stored;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Fields are appended only: an image of an older version ends before them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Image {
    /// By name. Version 1 had these alone.
    pub(crate) groups: BTreeMap<String, Stored>,
    /// Groups of the consumer protocol, and configs of groups.
    pub(crate) consumers: Consumers,
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
                let groups = fields.next_element()?.unwrap_or_default();
                // An older version ends here; its bytes were checked as a whole.
                let consumers = fields.next_element().ok().flatten().unwrap_or_default();
                Ok(Image { groups, consumers })
            }
        }
        deserializer.deserialize_struct("Image", &["groups", "consumers"], ImageVisitor)
    }
}
