//! The part of members' metadata and assignments that the coordinator looks at: ConsumerProtocol of the classic protocol.
//!
//! ```text
//! subscription  version 2 | topics: count 4, (name)… | user data 4 + n
//!               from 1 on: | owned: count 4, (name, count 4, partition 4…)… | 2: generation 4 | 3: rack
//! assignment    version 2 | topics: count 4, (name, count 4, partition 4…)… | user data 4 + n
//! name, rack    length 2, UTF-8; of a rack -1: none
//! ```

use super::record::Blob;

/// Protocol type of consumers.
pub(crate) const PROTOCOL_TYPE: &str = "consumer";
/// Newest version of an assignment; the layout is the same in all.
const ASSIGNMENT_VERSION_MAX: i16 = 3;

/// A subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// Topics by name.
    pub(crate) topics: Vec<String>,
    /// What the member says it owns.
    pub(crate) owned: Vec<(String, Vec<i32>)>,
    /// Its rack.
    pub(crate) rack: Option<String>,
}

/// The topics; `None` when the bytes are no subscription.
pub(crate) fn topics(bytes: &[u8]) -> Option<Vec<String>> {
    parse(bytes).map(|parsed| parsed.topics)
}

/// A subscription; `None` when the bytes are none. What a version has not, or was left out at the end, is empty.
pub(crate) fn parse(bytes: &[u8]) -> Option<Parsed> {
    let mut reader = Reader(bytes);
    let version = reader.int16()?;
    if version < 0 {
        return None;
    }
    let count = reader.count(2)?;
    let topics = (0..count).map(|_| reader.text()).collect::<Option<Vec<String>>>()?;
    let mut parsed = Parsed { topics, ..Parsed::default() };
    if reader.0.is_empty() {
        return Some(parsed);
    }
    reader.skip_bytes()?;
    if version >= 1 && !reader.0.is_empty() {
        parsed.owned = reader.partitions()?;
    }
    if version >= 3 && !reader.0.is_empty() {
        reader.int32()?;
        parsed.rack = reader.nullable_text()?;
    }
    Some(parsed)
}

/// The version that a subscription or an assignment begins with; 0 when it is none.
pub(crate) fn version(bytes: &[u8]) -> i16 {
    Reader(bytes).int16().unwrap_or(0)
}

/// An assignment; `None` when the bytes are none.
pub(crate) fn assignment(bytes: &[u8]) -> Option<Vec<(String, Vec<i32>)>> {
    let mut reader = Reader(bytes);
    if reader.int16()? < 0 { None } else { reader.partitions() }
}

/// Encodes an assignment for a member whose subscription is of `version`.
pub(crate) fn encode_assignment(version: i16, partitions: &[(String, Vec<i32>)]) -> Blob {
    let mut bytes = version.clamp(0, ASSIGNMENT_VERSION_MAX).to_be_bytes().to_vec();
    bytes.extend((partitions.len() as i32).to_be_bytes());
    for (name, of) in partitions {
        bytes.extend((name.len() as i16).to_be_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend((of.len() as i32).to_be_bytes());
        bytes.extend(of.iter().flat_map(|partition| partition.to_be_bytes()));
    }
    bytes.extend((-1i32).to_be_bytes());
    Blob(bytes.into())
}

/// Reads from the front; `None` where the bytes end.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn int16(&mut self) -> Option<i16> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i16::from_be_bytes(*head))
    }

    fn int32(&mut self) -> Option<i32> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i32::from_be_bytes(*head))
    }

    /// A count of things that take `least` bytes each at least: one that lies allocates nothing.
    fn count(&mut self, least: usize) -> Option<usize> {
        let count = usize::try_from(self.int32()?).ok()?;
        (count <= self.0.len() / least).then_some(count)
    }

    fn text(&mut self) -> Option<String> {
        let len = usize::try_from(self.int16()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        std::str::from_utf8(text).ok().map(str::to_owned)
    }

    fn nullable_text(&mut self) -> Option<Option<String>> {
        if let Some(rest) = self.0.strip_prefix(&[0xff, 0xff]) {
            self.0 = rest;
            return Some(None);
        }
        self.text().map(Some)
    }

    fn skip_bytes(&mut self) -> Option<()> {
        // A negative length: none.
        let len = usize::try_from(self.int32()?).unwrap_or(0);
        let (_, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(())
    }

    fn partitions(&mut self) -> Option<Vec<(String, Vec<i32>)>> {
        let topics = self.count(6)?;
        let topic = |_| {
            let name = self.text()?;
            let count = self.count(4)?;
            let partitions = (0..count).map(|_| self.int32()).collect::<Option<Vec<i32>>>()?;
            Some((name, partitions))
        };
        (0..topics).map(topic).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> Vec<u8> {
        [&(text.len() as i16).to_be_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn topics_of_a_subscription_are_read() {
        let bytes = [0, 1, 0, 0, 0, 2, 0, 1, b'a', 0, 2, b'b', b'c', 0xff, 0xff, 0xff, 0xff];
        assert_eq!(topics(&bytes), Some(vec!["a".to_owned(), "bc".to_owned()]));
        assert_eq!(topics(&[0, 1, 0, 0, 0, 0]), Some(vec![]));
    }

    #[test]
    fn every_version_of_a_subscription_is_read() {
        let owned: Vec<u8> = [&[0, 0, 0, 1][..], &name("t"), &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7]].concat();
        for version in 0u8..=4 {
            let mut bytes = [&[0, version, 0, 0, 0, 1][..], &name("t"), &[0, 0, 0, 2, 9, 9]].concat();
            if version >= 1 {
                bytes.extend(&owned);
            }
            if version >= 2 {
                bytes.extend(5i32.to_be_bytes());
            }
            if version >= 3 {
                bytes.extend(name("r1"));
            }
            let parsed = parse(&bytes).expect("a subscription");
            assert_eq!(parsed.topics, vec!["t"]);
            assert_eq!(parsed.owned, if version >= 1 { vec![("t".to_owned(), vec![0, 7])] } else { vec![] });
            assert_eq!(parsed.rack.as_deref(), if version >= 3 { Some("r1") } else { None });
        }
    }

    #[test]
    fn an_assignment_comes_back_as_it_was() {
        let partitions = vec![("a".to_owned(), vec![0, 2]), ("b".to_owned(), vec![])];
        for version in [0, 1, 3, 9] {
            let bytes = encode_assignment(version, &partitions);
            assert_eq!(assignment(&bytes.0), Some(partitions.clone()));
            assert_eq!(super::version(&bytes.0), version.min(3));
        }
    }

    #[test]
    fn lengths_that_lie_are_no_subscription() {
        assert_eq!(topics(&[]), None);
        assert_eq!(topics(&[0, 1, 0x7f, 0xff, 0xff, 0xff, 0, 1]), None);
        assert_eq!(topics(&[0, 1, 0, 0, 0, 1, 0x7f, 0xff, b'a']), None);
        assert_eq!(topics(&[0, 1, 0, 0, 0, 1, 0, 1, 0xff]), None);
        assert_eq!(parse(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 9]), None);
        assert_eq!(assignment(&[0, 1, 0x7f, 0xff, 0xff, 0xff]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
            let _ = assignment(&bytes);
        }
    }
}
