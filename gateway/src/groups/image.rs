//! The durable state of one partition of `__groups` as a snapshot has it.

use super::consumer::ReadSince;
use super::consumer::image::Consumers;
use super::pending::Pending;
use super::record::Stored;
use super::view::Numbers;
use serde::de::{SeqAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// The fields of an image in their order.
const FIELDS: [&str; 5] = ["groups", "consumers", "pending", "numbers", "since"];

/// Fields are appended only: an image of an older version ends before them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    /// By name. Version 1 had these alone.
    pub(crate) groups: BTreeMap<String, Stored>,
    /// Groups of the consumer protocol, and configs of groups. Since version 2. Since when their members hold their partitions is
    /// written behind everything else, since version 5; without it a member has what it holds since its present epoch.
    pub(crate) consumers: Consumers,
    /// Offsets that wait for the end of a transaction. Since version 3.
    pub(crate) pending: Pending,
    /// Where tools find all this. Since version 4; what was stored without is numbered by name.
    pub(crate) numbers: Numbers,
}

impl Serialize for Image {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Image { groups, consumers, pending, numbers } = self;
        let [of_groups, of_consumers, of_pending, of_numbers, of_since] = FIELDS;
        let mut fields = serializer.serialize_struct("Image", FIELDS.len())?;
        fields.serialize_field(of_groups, groups)?;
        fields.serialize_field(of_consumers, consumers)?;
        fields.serialize_field(of_pending, pending)?;
        fields.serialize_field(of_numbers, numbers)?;
        fields.serialize_field(of_since, &consumers.all_since())?;
        fields.end()
    }
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
                let mut consumers: Consumers = fields.next_element().ok().flatten().unwrap_or_default();
                let pending = fields.next_element().ok().flatten().unwrap_or_default();
                let numbers = fields.next_element().ok().flatten();
                let numbers = numbers.unwrap_or_else(|| Numbers::of(&groups));
                let since: Option<ReadSince> = fields.next_element().ok().flatten();
                consumers.take_since(since);
                Ok(Image { groups, consumers, pending, numbers })
            }
        }
        deserializer.deserialize_struct("Image", &FIELDS, ImageVisitor)
    }
}
