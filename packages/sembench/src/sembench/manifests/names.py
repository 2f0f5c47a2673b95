"""Names of people, firms, systems and places: large pools, so that every source has its own."""

from __future__ import annotations

from sembench.manifests.draws import Draws


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MONTHS = _words("January February March April May June July August September October November December")
WEEKDAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

_GIVEN = _words("""
    Aaron Abena Adela Ahmed Aiko Alina Amara Anders Anika Anton Arjun Astrid Beatriz Bela Bjorn Bruno Camila
    Carlo Carmen Cedric Chiara Clara Dalia Damian Daria David Deepa Diego Dina Dmitri Edith Efua Elena Elias
    Emeka Emil Erika Esther Fabian Farah Fatima Felix Fiona Freya Gabriel Georgia Gina Goran Grace Greta Gustav
    Hana Hanna Hassan Hector Helena Henrik Ilaria Imran Ines Ingrid Irina Isaac Ivana Jakob Jana Javier Jonas
    Joyce Julia Kamal Karin Kenji Kerstin Klara Kofi Laila Lars Laura Leila Leon Lidia Linh Lorenzo Lucia Luis
    Magda Malik Marek Marta Mateo Maya Mehmet Mei Milan Miriam Mona Nadia Naomi Nikhil Nils Nina Noor Olga Omar
    Oscar Pablo Paula Pavel Petra Priya Rafael Raj Rania Rebeca Rohan Rosa Ruben Ruth Sabine Samir Sandra Selma
    Sergio Sharon Simon Sofia Stefan Sven Tamara Tariq Teresa Theo Thuy Tomas Ulrike Usha Valeria Vera Victor
    Viktoria Wanda Wendy Xavier Yara Yosef Yuki Zainab Zofia
""")
_SURNAME_STARTS = _words("""
    Ald Ames Ash Bar Bex Black Brack Bram Bren Bur Cald Car Chat Clay Col Crom Dal Den Dray Dun Eck El Fair Farn
    Fen Fox Gar Gil Glad Gran Hal Har Hather Haw Hol Hux Ing Kel Ken Kirk Lam Lang Lin Lock Lud Mar May Mel Mid
    Nor Oak Os Pem Pen Quin Rad Ran Red Ros Rush Sal Sed Sel Shel Stan Stock Strat Sut Tar Thorn Tid Tor Tre Up
    Van Wal War Wen Wes Whit Win Wood Wray Yar
""")
_SURNAME_ENDS = _words("""
    acre beck berry borne bourne bridge brook bury by combe cott croft dale den don field ford gate ham hill
    holt hurst ington land ley low man mere more ridge rick shaw stead stock stone ton wall ward water well wick
    worth
""")
_FIRM_STARTS = _words("""
    Amber Anchor Apex Arbor Argent Aster Atlas Aurora Basalt Beacon Birch Bluefin Boreal Brightwater Cardinal
    Cedar Cinder Citadel Clearbrook Cobalt Compass Copper Coral Crescent Delta Driftwood Eastgate Elm Ember
    Falcon Fjord Foxglove Garnet Glacier Granite Greenway Harbour Hawthorn Hazel Heath Highland Horizon Indigo
    Ironbridge Ivory Jasper Kestrel Keystone Lakeside Lantern Larch Linden Lodestar Maple Marigold Meridian
    Millstone Monarch Moorland Nautilus Northwind Oakmere Obsidian Olive Onyx Opal Orchard Osprey Pioneer
    Pinnacle Quarry Quartz Redwood Ridgeline Riverstone Rowan Saffron Sandpiper Sapphire Silverton Slate
    Solstice Southbank Spruce Sterling Stonebridge Summit Sycamore Tamarack Teal Thistle Tidewater Topaz
    Tradewind Union Vale Verdant Vista Walnut Westbrook Wildflower Willow Wren Zenith
""")
_FIRM_TRADES = _words("""
    Airways Analytics Architects Bakeries Bearings Biotech Bottling Brewing Cargo Castings Catering Ceramics
    Chemicals Clinics Coatings Components Couriers Dairy Dental Devices Dyes Electric Energy Estates Exports
    Fabrics Farms Fastenings Ferries Filters Fisheries Foods Forestry Foundry Freight Fuels Furniture Gardens
    Glass Grain Haulage Hotels Instruments Insulation Interiors Joinery Laundries Leasing Lighting Linen
    Logistics Machinery Marine Media Metals Milling Mobility Optics Organics Packaging Paints Paper Pharma
    Plastics Plumbing Polymers Power Press Printing Pumps Rail Recycling Refrigeration Rentals Robotics Salvage
    Seeds Shipping Solar Stationery Steel Storage Supplies Surveys Systems Tankers Textiles Tiles Timber Tools
    Toys Tractors Turbines Valves Vending Veneers Vineyards Water Wholesale Windows
""")
_SYSTEM_STARTS = _words("""
    Acorn Alder Badger Bamboo Beaver Bramble Bison Cactus Caribou Cheetah Clover Condor Cormorant Coyote Crane
    Cricket Cypress Dahlia Dolphin Egret Falcon Fern Finch Gecko Gibbon Ginkgo Hazel Heron Hickory Hornet Ibex
    Iguana Iris Jackal Jaguar Jasmine Juniper Kestrel Koala Lark Laurel Lemur Leopard Lilac Lotus Lynx Magpie
    Mallow Mango Marten Mimosa Mongoose Myrtle Narwhal Nettle Ocelot Orchid Oriole Otter Panther Papaya Pelican
    Peony Petrel Pine Plover Poplar Puffin Quail Raccoon Raven Robin Sable Salmon Sequoia Shrike Sorrel Sparrow
    Starling Stork Sumac Swift Tapir Teasel Tern Thyme Toucan Turnip Urchin Viper Vole Walrus Weasel Wigeon
    Wombat Yarrow Yew Zebra
""")
_SYSTEM_ENDS = _words("""
    Atlas Board Books Bridge Cart Cast Dash Depot Desk Dock Drive Feed Flow Forge Gate Grid Guard Hub Index
    Ledger Lens Link Lock Loop Mail Mart Mesh Mill Mint Note Path Pay Plan Point Port Post Pulse Quest Queue
    Rail Relay Route Scan Scope Sense Shelf Sheet Shift Sign Slate Spool Stack Store Stream Switch Sync Track
    Trade Vault View Wave Wire Works
""")
_SITE_FRONTS = ("Port", "Upper", "Lower", "New", "Old", "East", "West", "North", "South", "Great", "Little", "Saint")


def person(draws: Draws) -> str:
    return f"{draws.pick(_GIVEN)} {surname(draws)}"


def surname(draws: Draws) -> str:
    return draws.pick(_SURNAME_STARTS) + draws.pick(_SURNAME_ENDS)


def firm(draws: Draws) -> str:
    return f"{draws.pick(_FIRM_STARTS)} {draws.pick(_FIRM_TRADES)}"


def system(draws: Draws) -> str:
    return draws.pick(_SYSTEM_STARTS) + draws.pick(_SYSTEM_ENDS)


def site(draws: Draws) -> str:
    town = surname(draws)
    return f"{draws.pick(_SITE_FRONTS)} {town}" if draws.chance(0.4) else town
