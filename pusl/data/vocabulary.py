# ruff: noqa: E501  (a table reads best with one line per product type)
"""Words of a shop -> departments and product types with what can be said about them.

One line per product type: `type | other names | shelf | features | uses | sizes | materials`. Other
names and the shelf never stand in the text of an item that is called by its type, so a model must
learn them; everything else is said in the text. Brands and models are invented in `grammar.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProductType:
    """A kind of product and the words buyers and sellers use about it."""

    name: str
    other_names: tuple[str, ...]
    shelf: str
    features: tuple[str, ...]
    uses: tuple[str, ...]
    sizes: tuple[str, ...]
    materials: tuple[str, ...]
    department: str


@dataclass(frozen=True)
class Department:
    """What items of a department tend to have: shares of items with an edition, a color, an audience."""

    edition: float
    color: float
    audience: float
    audiences: tuple[str, ...]
    types: str


COLORS = (
    "black", "white", "blue", "red", "silver", "gray", "green", "pink", "gold", "navy", "purple", "orange", "yellow",
    "teal", "beige", "burgundy", "olive", "turquoise",
)  # fmt: skip
EDITIONS = ("pro", "mini", "max", "lite", "plus", "ultra", "air", "se", "classic", "sport", "elite", "neo")

DEPARTMENTS = {
    "electronics": Department(
        0.75, 0.6, 0.1, ("kids", "seniors"),
        """
drone | quadcopter, flying camera | rc toys | foldable, 4k, gps, beginner, long range | travel, filming, racing | 249g, 500g | carbon
headphones | headset, over ear cans | audio | wireless, noise cancelling, foldable, bass boost | gaming, travel, studio, running | | leather
earbuds | earphones, in ear headphones | audio | wireless, waterproof, noise cancelling, magnetic | running, gym, sleeping, calls | |
speaker | soundbox | audio | bluetooth, waterproof, portable, stereo, usb c | parties, shower, camping, desk | 10w, 20w, 60w | fabric, bamboo
smartwatch | fitness watch, activity tracker | wearables | gps, waterproof, amoled, heart rate | running, swimming, hiking | 40mm, 44mm, 47mm | steel, titanium
tablet | slate, tab | computers | touchscreen, lte, rugged, kids safe | drawing, reading, school, streaming | 8 inch, 10 inch, 12 inch | aluminum
laptop | notebook, ultrabook | computers | gaming, touchscreen, 2 in 1, fanless, oled | students, video editing, coding, office | 13 inch, 14 inch, 16 inch | aluminum, magnesium
monitor | display, computer screen | computers | curved, 4k, 144hz, usb c, ultrawide | gaming, office, photo editing | 24 inch, 27 inch, 32 inch, 34 inch |
keyboard | keypad | computer accessories | mechanical, wireless, backlit, ergonomic, silent | gaming, office, coding | 60 percent, full size, tenkeyless | aluminum
power bank | portable charger, battery pack | phone accessories | fast charging, solar, slim, magnetic, wireless | travel, camping, phones | 5000mah, 10000mah, 20000mah |
webcam | streaming camera | computer accessories | 4k, autofocus, wide angle, privacy cover | streaming, video calls, teaching | 1080p, 1440p |
action camera | sports cam | cameras | waterproof, 4k, stabilized, touchscreen | diving, skiing, cycling, vlogging | 12mp, 20mp |
router | wifi box, internet router | networking | mesh, dual band, wifi 6, gigabit | gaming, large homes, streaming | ax1800, ax3000, ax6000 |
projector | beamer | home cinema | portable, 4k, short throw, wifi | movies, gaming, presentations, backyard | 500 lumen, 1000 lumen, 3000 lumen |
""",
    ),
    "outdoor": Department(
        0.35, 0.5, 0.3, ("kids", "mens", "womens"),
        """
tent | shelter, camping house | camping gear | pop up, waterproof, ultralight, 4 season, blackout | camping, backpacking, festivals, beach | 1 person, 2 person, 4 person, 6 person | canvas, polyester
sleeping bag | sleep sack | camping gear | lightweight, compressible, mummy, extra wide, winter | camping, backpacking, travel | 0 degree, 20 degree, 40 degree | down, fleece
backpack | rucksack, knapsack | bags | waterproof, foldable, anti theft, hydration, frameless | hiking, travel, school, commuting | 20l, 30l, 45l, 65l | canvas, nylon, leather
hammock | hanging bed | camping gear | double, portable, mosquito net, quick dry | camping, garden, beach | single size, double size | cotton, nylon
headlamp | head torch, forehead light | lighting | rechargeable, waterproof, motion sensor, red light | running, camping, fishing, caving | 300 lumens, 500 lumens, 1000 lumens |
water bottle | drinking flask, canteen | drinkware | insulated, leakproof, wide mouth, collapsible, filtering | hiking, gym, school, cycling | 18 oz, 24 oz, 32 oz, 40 oz | steel, glass, titanium
camp stove | gas cooker, burner | camping kitchen | portable, folding, windproof, piezo ignition | backpacking, camping, fishing | 1 burner, 2 burner | steel, titanium
cooler | ice chest, cool box | camping kitchen | wheeled, soft, electric, leakproof | picnics, beach, fishing, road trips | 12 can, 24 can, 50 quart |
trekking poles | hiking sticks, walking poles | hiking gear | folding, shock absorbing, adjustable, ultralight | hiking, snow, walking | 100cm, 120cm, 135cm | carbon, aluminum
binoculars | field glasses, spyglass | optics | compact, waterproof, night vision, zoom | bird watching, hunting, concerts, stargazing | 8x42, 10x42, 12x50 |
kayak | paddle boat | water sports | inflatable, tandem, sit on top, foldable | fishing, touring, lakes | 8 ft, 10 ft, 12 ft |
fishing rod | fishing pole, angling rod | fishing tackle | telescopic, spinning, travel, 2 piece | bass, trout, saltwater, ice fishing | 6 ft, 7 ft, 9 ft | carbon, fiberglass
""",
    ),
    "kitchen": Department(
        0.4, 0.45, 0.0, (),
        """
coffee maker | coffee machine, brewer | small appliances | programmable, drip, single serve, thermal, compact | office, espresso, iced coffee | 4 cup, 10 cup, 12 cup | steel, glass
blender | mixer, smoothie maker | small appliances | portable, high speed, quiet, cordless | smoothies, soups, baby food, protein shakes | 600w, 1000w, 1500w | glass, steel
air fryer | hot air fryer, oil free fryer | small appliances | digital, dual basket, compact, smart | chicken, fries, family meals | 4 quart, 6 quart, 8 quart |
knife set | kitchen knives, chef knives | cutlery | self sharpening, dishwasher safe, serrated, forged | meat, vegetables, bbq | 6 piece, 12 piece, 15 piece | steel, ceramic, damascus
frying pan | skillet, fry pan | cookware | nonstick, induction, oven safe, deep | eggs, steak, pancakes | 8 inch, 10 inch, 12 inch | cast iron, ceramic, copper, steel
kettle | water boiler, tea kettle | small appliances | electric, gooseneck, whistling, temperature control | tea, pour over coffee, camping | 1 liter, 1.7 liter | glass, steel
toaster | bread toaster | small appliances | wide slot, retro, digital, bagel | bagels, sourdough | 2 slice, 4 slice | steel
cutting board | chopping board | kitchen tools | double sided, juice groove, non slip, folding | meat, vegetables, bread | small, large, extra large | bamboo, plastic, walnut
lunch box | bento box, food container | food storage | leakproof, insulated, microwave safe, stackable | school, work, salads | 2 compartment, 3 compartment | steel, glass, bamboo
travel mug | tumbler, coffee cup | drinkware | insulated, spill proof, handled, ceramic coated | commuting, coffee, car | 12 oz, 16 oz, 20 oz | steel, ceramic
rice cooker | rice steamer | small appliances | programmable, induction, mini, keep warm | sushi rice, quinoa, oatmeal | 3 cup, 6 cup, 10 cup |
stand mixer | dough mixer, kitchen machine | baking | tilt head, quiet, bowl lift, 10 speed | bread dough, cakes, cookies | 4.5 quart, 6 quart, 8 quart | steel
""",
    ),
    "fashion": Department(
        0.1, 0.9, 0.85, ("mens", "womens", "kids", "boys", "girls"),
        """
running shoes | trainers, sneakers | footwear | lightweight, wide, cushioned, breathable, trail | marathon, gym, walking, flat feet | size 6, size 8, size 9, size 11 | mesh, knit
boots | ankle boots, booties | footwear | waterproof, slip resistant, insulated, lace up | hiking, work, snow, winter | size 7, size 8, size 10 | leather, suede, rubber
sandals | flip flops, slides | footwear | arch support, adjustable, waterproof, cushioned | beach, hiking, walking, pool | size 6, size 8, size 10 | leather, cork, foam
jacket | coat, windbreaker | outerwear | waterproof, hooded, packable, heated, quilted | skiing, rain, hiking, winter | small, medium, large, xl | fleece, down, denim, leather
hoodie | hooded sweatshirt, pullover | sweatshirts | oversized, zip up, fleece lined, cropped | gym, lounging, winter | small, medium, large, xxl | cotton, fleece
t shirt | tee, shirt | tops | long sleeve, v neck, oversized, quick dry, graphic | gym, running, work | small, medium, large, xl | cotton, linen, bamboo
leggings | yoga pants, tights | activewear | high waisted, seamless, fleece lined, pocketed | yoga, running, gym, winter | small, medium, large | cotton, spandex
jeans | denim pants, denim trousers | bottoms | slim fit, ripped, stretch, high waisted, bootcut | work, motorcycle, winter | 30x32, 32x32, 34x34 | denim, cotton
dress | gown, frock | womenswear | maxi, wrap, floral, off shoulder, sleeveless | weddings, summer, parties, work | small, medium, large, xl | cotton, silk, linen, velvet
socks | crew socks, stockings | underwear | compression, no show, cushioned, thermal | running, diabetics, hiking, work | 3 pack, 6 pack, 12 pack | wool, cotton, bamboo
gloves | mittens, hand warmers | winter accessories | touchscreen, waterproof, thermal, fingerless | skiing, running, driving, gardening | small, medium, large | leather, wool, fleece
sunglasses | shades, sun specs | eyewear | polarized, oversized, foldable, mirrored | driving, fishing, cycling, beach | 50mm, 55mm, 58mm | metal, acetate, wood
wallet | billfold, card holder | leather goods | rfid blocking, slim, trifold, zipper | travel, cards, coins | 6 card, 12 card | leather, carbon, canvas
swimsuit | bathing suit, bikini | swimwear | one piece, high waisted, tummy control, two piece | beach, pool, surfing, lap swimming | small, medium, large | nylon, spandex
""",
    ),
    "sports": Department(
        0.35, 0.45, 0.3, ("mens", "womens", "kids", "beginner"),
        """
yoga mat | exercise mat, pilates mat | fitness | non slip, thick, foldable, extra long | pilates, stretching, hot yoga, beginners | 4mm, 6mm, 10mm | cork, rubber, tpe
dumbbells | hand weights, free weights | strength training | adjustable, hex, neoprene, quick lock | home gym, toning, crossfit | 5 lb, 10 lb, 25 lb, 50 lb | rubber, iron
resistance bands | exercise bands, fitness loops | fitness | heavy duty, fabric, tube, non slip | physical therapy, glutes, pull ups | set of 3, set of 5 | latex, fabric
bicycle | bike, push bike | cycling | folding, electric, full suspension, single speed | commuting, mountain, trails, touring | 20 inch, 26 inch, 29 inch | carbon, aluminum, steel
bike helmet | cycling helmet, crash hat | cycling | mips, aerodynamic, visor, light up | mountain biking, commuting, skating | small, medium, large | carbon
bike light | cycle lamp, bicycle light | cycling | rechargeable, waterproof, usb, brake sensing | commuting, night riding, mountain biking | 200 lumens, 800 lumens, 1200 lumens | aluminum
basketball | hoop ball | ball sports | indoor, outdoor, glow, street | training, school, tournaments | size 5, size 6, size 7 | leather, rubber
soccer ball | football, futsal ball | ball sports | match, training, waterproof, glow | school, beach, tournaments | size 3, size 4, size 5 | leather
tennis racket | tennis racquet | racket sports | lightweight, oversize, pre strung, vibration damping | training, club play, doubles | 23 inch, 25 inch, 27 inch | carbon, graphite, aluminum
golf clubs | golf irons, golf set | golf | left handed, forged, complete, hybrid | training, travel, tournaments | 8 piece, 11 piece, 14 piece | graphite, steel
jump rope | skipping rope, speed rope | fitness | weighted, adjustable, cordless, tangle free | boxing, crossfit, cardio | 8 ft, 9 ft, 10 ft | steel, cotton
treadmill | running machine, walking pad | gym machines | folding, incline, under desk, quiet | home gym, office, walking | 2 hp, 3 hp |
skateboard | longboard, street deck | board sports | complete, electric, cruiser, pre assembled | tricks, commuting, carving | 27 inch, 31 inch, 42 inch | maple, bamboo
""",
    ),
    "home": Department(
        0.15, 0.75, 0.1, ("kids", "teen"),
        """
desk lamp | table lamp, reading light | lighting | dimmable, led, clamp, usb charging, wireless | reading, office, studying, crafts | 5w, 10w, 15w | brass, wood
floor lamp | standing lamp, uplighter | lighting | dimmable, arc, tripod, smart | living room, reading, bedroom | 60 inch, 70 inch | brass, wood, metal
sofa | couch, settee | furniture | sectional, reclining, sleeper, modular | living room, small spaces, office | 2 seater, 3 seater | velvet, leather, linen
office chair | desk chair, computer chair | furniture | ergonomic, mesh back, reclining, armless | gaming, home office, back pain | 250 lb, 300 lb, 400 lb | mesh, leather, velvet
standing desk | sit stand desk, height adjustable table | furniture | electric, l shaped, foldable, dual motor | gaming, home office, small spaces | 48 inch, 55 inch, 63 inch | bamboo, walnut
bookshelf | bookcase, shelving unit | furniture | corner, ladder, floating, wall mounted | living room, office, books | 3 tier, 4 tier, 5 tier | oak, metal, bamboo
mattress | bed topper | bedding | memory foam, hybrid, cooling, firm | side sleepers, back pain, guests | twin, full, queen, king | latex, foam
pillow | cushion, headrest | bedding | cooling, orthopedic, adjustable, body | side sleepers, neck pain, pregnancy, travel | standard, queen, king | bamboo, down, latex
blanket | throw, bed cover | bedding | weighted, heated, chunky knit, reversible | sofa, winter, anxiety, travel | twin, queen, king | fleece, wool, cotton
curtains | drapes, window panels | window decor | blackout, thermal, sheer, grommet | bedroom, living room, sliding doors | 63 inch, 84 inch, 96 inch | linen, velvet, cotton
rug | carpet, floor mat | home decor | washable, shaggy, non slip, outdoor | living room, kitchen, hallway | 3x5, 5x7, 8x10 | wool, jute, cotton
wall clock | hanging clock | home decor | silent, digital, atomic, large | kitchen, office, bathroom | 10 inch, 12 inch, 16 inch | wood, metal, glass
vacuum cleaner | hoover, floor cleaner | cleaning | cordless, robot, bagless, handheld | pet hair, hardwood, carpets, stairs | 150w, 250w, 400w |
""",
    ),
    "beauty": Department(
        0.2, 0.3, 0.4, ("mens", "womens", "teen"),
        """
face cream | moisturizer, face lotion | skin care | hydrating, anti aging, spf, fragrance free, vegan | dry skin, sensitive skin, night, acne | 30ml, 50ml, 100ml |
face serum | skin essence, booster | skin care | vitamin c, retinol, hyaluronic, vegan | dark spots, wrinkles, glowing skin | 15ml, 30ml, 60ml |
shampoo | hair wash, hair cleanser | hair care | sulfate free, clarifying, purple, volumizing | curly hair, dandruff, hair loss, blondes | 8 oz, 12 oz, 32 oz |
hair dryer | blow dryer | hair tools | ionic, foldable, diffuser, quiet | curly hair, travel, salon | 1200w, 1800w, 2200w | ceramic
hair straightener | flat iron, hair iron | hair tools | cordless, steam, mini, dual voltage | thick hair, travel, curling | 1 inch, 1.5 inch, 2 inch | ceramic, titanium
electric shaver | razor, beard shaver | shaving | foil, rotary, waterproof, cordless | bald heads, sensitive skin, travel | 3 head, 5 head | steel
perfume | fragrance, eau de parfum | fragrances | floral, woody, vanilla, long lasting | gifts, date night, summer | 30ml, 50ml, 100ml | glass
lipstick | lip color, lip stain | makeup | matte, long lasting, hydrating, vegan | weddings, work, fair skin | 3 pack, 5 pack, 12 pack |
makeup brushes | cosmetic brushes, brush kit | makeup tools | vegan, travel, soft, professional | foundation, eyeshadow, beginners | 8 piece, 12 piece, 24 piece | bamboo
nail polish | nail lacquer, nail varnish | nails | gel, quick dry, vegan, glitter | toes, weddings, home manicure | 6 pack, 12 pack |
electric toothbrush | power toothbrush, sonic brush | oral care | sonic, rechargeable, travel, pressure sensor | whitening, sensitive gums, braces | 4 heads, 8 heads |
""",
    ),
    "toys": Department(
        0.15, 0.4, 0.8, ("toddler", "baby", "boys", "girls", "kids"),
        """
building blocks | construction bricks, stacking set | toys | magnetic, jumbo, glow in the dark, interlocking | stem, preschool, travel | 50 piece, 100 piece, 500 piece | wooden, foam
puzzle | jigsaw | games | 3d, floor, glow in the dark, double sided | family night, seniors, preschool | 100 piece, 500 piece, 1000 piece | wooden, cardboard
board game | tabletop game, party game | games | cooperative, strategy, travel, deck building | family night, couples, parties | 2 player, 4 player, 8 player |
remote control car | rc car, rc truck | rc toys | off road, 4wd, waterproof, high speed | racing, beginners, backyard | 1 10 scale, 1 16 scale, 1 24 scale |
doll house | dollhouse, play house | pretend play | foldable, furnished, three story, light up | preschool, gifts, playroom | small, large | wooden, plastic
stuffed animal | plush toy, soft toy | soft toys | giant, weighted, singing, heatable | bedtime, gifts, anxiety | 10 inch, 16 inch, 36 inch | cotton, plush
train set | toy railway, railroad set | toys | battery powered, remote control, steam, expandable | christmas, preschool, collectors | 30 piece, 60 piece, 100 piece | wooden
scooter | kick scooter, ride on | outdoor play | foldable, electric, light up, 3 wheel | school, beginners, park | 100 lb, 220 lb | aluminum
play kitchen | toy kitchen, pretend kitchen | pretend play | light up, foldable, corner, musical | preschool, playroom, gifts | small, large | wooden, plastic
art set | drawing kit, paint set | arts and crafts | washable, portable, acrylic, watercolor | beginners, travel, school | 48 piece, 100 piece, 150 piece | wooden
science kit | experiment set, lab kit | educational toys | chemistry, crystal growing, volcano, solar | stem, school, gifts | 30 experiments, 100 experiments |
""",
    ),
    "pets": Department(
        0.1, 0.55, 0.0, (),
        """
dog bed | pet bed, puppy bed | dog supplies | orthopedic, washable, calming, elevated, waterproof | crates, seniors, car | small, medium, large, xl | fleece, canvas
dog leash | dog lead, puppy leash | dog supplies | retractable, reflective, hands free, heavy duty | running, training, night walks | 4 ft, 6 ft, 10 ft | nylon, leather, rope
dog harness | pet vest, puppy harness | dog supplies | no pull, reflective, step in, tactical | walking, hiking, car | small, medium, large | mesh, nylon
cat tree | cat tower, climbing post | cat supplies | multi level, wall mounted, compact, modern | large cats, kittens, small apartments | 36 inch, 60 inch, 72 inch | sisal, wooden
litter box | cat toilet, litter tray | cat supplies | self cleaning, covered, top entry, odor control | large cats, kittens, small spaces | medium, large, xl | steel, plastic
pet feeder | food dispenser, automatic feeder | feeding | automatic, wifi, portion control, slow | cats, vacations, two pets | 3 liter, 5 liter | steel
aquarium | fish tank, fish bowl | fish supplies | glass lid, self cleaning, led, rimless | betta, turtles, beginners | 3 gallon, 10 gallon, 20 gallon | glass, acrylic
bird cage | parrot cage, aviary | bird supplies | rolling, flight, foldable, double | parakeets, cockatiels, travel | 18 inch, 30 inch, 60 inch | iron, bamboo
dog toy | chew toy, puppy toy | dog supplies | squeaky, indestructible, interactive, treat dispensing | aggressive chewers, teething, fetch | small, medium, large | rubber, rope, plush
pet carrier | travel crate, animal bag | travel supplies | airline approved, expandable, soft sided, wheeled | cats, planes, hiking | small, medium, large | mesh, canvas
""",
    ),
    "garden": Department(
        0.2, 0.4, 0.0, (),
        """
lawn mower | grass cutter, mowing machine | garden machines | cordless, self propelled, robot, push | small yards, hills, large lawns | 16 inch, 20 inch, 21 inch | steel
garden hose | water hose, hosepipe | watering | expandable, kink free, retractable, lead free | car wash, rv, lawn | 25 ft, 50 ft, 100 ft | rubber, brass
planter | flower pot, plant pot | plant care | self watering, hanging, raised, railing | herbs, succulents, balcony, vegetables | 6 inch, 10 inch, 14 inch | ceramic, wood, terracotta
pruning shears | secateurs, hand pruners | garden tools | bypass, ratchet, electric, left handed | roses, bonsai, trees | 7 inch, 8 inch | steel
grill | barbecue, bbq smoker | outdoor cooking | portable, charcoal, gas, pellet, electric | camping, balcony, tailgating | 2 burner, 3 burner, 4 burner | cast iron, steel
patio umbrella | parasol, sun shade | garden furniture | tilting, cantilever, solar, uv resistant | pool, deck, beach | 7 ft, 9 ft, 11 ft | wood, aluminum
garden chair | patio chair, lawn chair | garden furniture | folding, reclining, stackable, rocking | camping, pool, balcony | 300 lb, 400 lb | rattan, teak, aluminum
solar lights | garden lights, path lights | outdoor lighting | motion sensor, waterproof, color changing, warm white | pathway, fence, christmas | 4 pack, 8 pack, 12 pack | glass, steel
leaf blower | garden blower, yard vacuum | garden machines | cordless, backpack, quiet, variable speed | snow, gutters, driveways | 20v, 40v, 60v |
greenhouse | grow house, hothouse | plant care | walk in, portable, pop up, lean to | seedlings, winter, tomatoes | 4x6, 6x8, 8x10 | polycarbonate, wood
""",
    ),
    "tools": Department(
        0.45, 0.15, 0.0, (),
        """
cordless drill | power drill, drill driver | power tools | brushless, compact, hammer, right angle | concrete, metal, home repair | 12v, 18v, 20v |
screwdriver set | driver kit, nut drivers | hand tools | magnetic, ratcheting, insulated, precision | electronics, glasses, computers | 10 piece, 24 piece, 60 piece | steel
tool box | tool chest, toolbox | tool storage | rolling, lockable, stackable, waterproof | trucks, garage, electricians | 16 inch, 20 inch, 26 inch | steel, plastic, aluminum
tape measure | measuring tape, ruler | measuring | magnetic, self locking, laser, keychain | carpenters, sewing, surveying | 16 ft, 25 ft, 33 ft | steel, fiberglass
ladder | step stool, steps | ladders | telescoping, folding, platform, multi position | attic, painting, stairs | 6 ft, 12 ft, 16 ft | aluminum, fiberglass
circular saw | skill saw, disc saw | power tools | cordless, mini, brushless, track | plywood, metal, decking | 4 inch, 6 inch, 7 inch |
work gloves | safety gloves, hand protection | safety | cut resistant, impact, touchscreen, winter | mechanics, gardening, construction | small, medium, large | leather, nitrile
air compressor | tire inflator, air pump | garage | portable, oil free, quiet, cordless | car tires, airbrush, nail guns | 1 gallon, 3 gallon, 6 gallon |
flashlight | torch, hand light | lighting | rechargeable, tactical, waterproof, zoomable | camping, emergencies, hunting | 1000 lumens, 3000 lumens | aluminum, titanium
socket set | wrench set, ratchet set | hand tools | metric, impact, deep, magnetic | mechanics, motorcycles, cars | 40 piece, 100 piece, 200 piece | steel
""",
    ),
    "auto": Department(
        0.35, 0.3, 0.0, (),
        """
dash cam | car camera, driving recorder | car electronics | 4k, dual channel, night vision, wifi | trucks, uber, parking | 2 inch, 3 inch, 4 inch |
car seat cover | seat protector, auto upholstery | car interior | heated, waterproof, universal, quilted | dogs, suv, trucks | 2 pack, 5 seats | leather, neoprene
phone holder | car mount, phone cradle | car accessories | magnetic, wireless charging, dashboard, vent | trucks, navigation, motorcycles | 4 inch, 6 inch, 7 inch | aluminum
floor mats | car mats, foot liners | car interior | all weather, custom fit, deep dish, anti slip | winter, trucks, suv | 2 piece, 4 piece | rubber, carpet
jump starter | booster pack, battery starter | car electronics | portable, lithium, compact, inflating | diesel, winter, motorcycles | 1000a, 2000a, 4000a |
car vacuum | auto hoover, handheld vac | car care | cordless, high power, wet dry, mini | pet hair, detailing, sand | 80w, 120w, 150w |
roof rack | cargo carrier, crossbars | car exterior | universal, lockable, aerodynamic, foldable | kayaks, bikes, skis | 48 inch, 54 inch, 60 inch | aluminum, steel
motorcycle helmet | full face lid, crash helmet | motorcycle gear | modular, bluetooth, dot approved, anti fog | touring, racing, city riding | small, medium, large | carbon, fiberglass
car wax | paint sealant, auto polish | car care | ceramic, spray, carnauba, hydrophobic | black cars, boats, scratches | 8 oz, 16 oz, 32 oz |
tire gauge | pressure gauge | car tools | digital, backlit, heavy duty, dual head | trucks, bicycles, rv | 100 psi, 150 psi, 250 psi | brass
""",
    ),
}  # fmt: skip


def product_types() -> list[ProductType]:
    """Every product type, departments interleaved so that the first n are a varied shop.

    >>> [kind.name for kind in product_types()[:3]]
    ['drone', 'tent', 'coffee maker']
    """
    shelves = [
        [_parse(line, name) for line in department.types.strip().splitlines()]
        for name, department in DEPARTMENTS.items()
    ]
    longest = max(map(len, shelves))
    return [shelf[row] for row in range(longest) for shelf in shelves if row < len(shelf)]


def _parse(line: str, department: str) -> ProductType:
    name, *lists, materials = (cell.strip() for cell in line.split("|"))
    others, shelf, features, uses, sizes = lists

    def words(cell: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in cell.split(",")) if cell else ()

    return ProductType(
        name, words(others), shelf, words(features), words(uses), words(sizes), words(materials), department
    )
